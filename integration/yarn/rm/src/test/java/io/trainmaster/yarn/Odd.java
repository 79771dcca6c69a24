package io.trainmaster.yarn;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.Map;
import java.util.concurrent.Callable;

/** Stands in for what a ResourceManager keeps, where some of its methods do what a test wants. */
final class Odd {
    private Odd() {}

    /**
     * All but these methods are the original's.
     *
     * @param methods by name; one that throws is one that fails
     */
    static <T> T like(Class<T> type, T original, Map<String, Callable<?>> methods) {
        return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, (proxy, method, arguments) -> {
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
