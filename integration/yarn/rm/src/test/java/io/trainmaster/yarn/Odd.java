package io.trainmaster.yarn;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.Map;
import java.util.concurrent.Callable;

/** Proxies of a ResourceManager's objects, with some methods replaced by a test. */
final class Odd {
    private Odd() {}

    /**
     * Wraps an object. All but these methods are the original's.
     *
     * @param methods the replaced methods, by name. One that throws fails
     */
    static <T> T like(Class<T> type, T original, Map<String, Callable<?>> methods) {
        Class<?>[] types = {type};
        return type.cast(Proxy.newProxyInstance(type.getClassLoader(), types, (proxy, method, arguments) -> {
            Callable<?> own = methods.get(method.getName());
            try {
                return own == null ? method.invoke(original, arguments) : own.call();
            } catch (InvocationTargetException thrown) {
                throw thrown.getCause();
            }
        }));
    }

    static <T> T fail() {
        throw new IllegalStateException("odd");
    }
}
