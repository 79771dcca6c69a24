"""A training loop without Ray, as a user has one."""

import time

import trainmaster

loss = 1.0
for step in range(1, 61):
    time.sleep(0.05)
    loss *= 0.97
    trainmaster.report(step=step, loss=loss, examples=32, epoch=step // 10)
trainmaster.finish(converged=True)
