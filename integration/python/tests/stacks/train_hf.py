"""Hugging Face's trainer, with a callback."""

from pathlib import Path

import transformers

import trainmaster.hf
import trainmaster.torch
from tests.stacks.common import BATCH, EPOCHS, WHOLE, Net, Numbers, began

arguments = transformers.TrainingArguments(
    "checkpoints",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=trainmaster.torch.accumulation(BATCH, 4),
    learning_rate=0.05,
    optim="sgd",
    logging_steps=5,
    save_strategy="no",
    save_total_limit=2,
    remove_unused_columns=False,
    use_cpu=True,
    ddp_backend="gloo",
    report_to=[],
    disable_tqdm=True,
)
trainer = transformers.Trainer(
    Net(), arguments, train_dataset=Numbers(WHOLE), callbacks=[trainmaster.hf.TrainerCallback()]
)
last = trainmaster.hf.last_checkpoint("checkpoints")
began(int(last.rpartition("-")[2]) if last else 0)
trainer.train(resume_from_checkpoint=last)
if trainer.is_world_process_zero():
    Path("complete").write_text(str(trainer.state.global_step))
