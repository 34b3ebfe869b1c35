"""A profile so small that preparing it takes a second or two, and fake wheels."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from pangu_hif8.config import DataConfig, EvalConfig, ModelConfig, Profile, TaskConfig, TrainConfig
from pangu_hif8.fetch import Wheel

ARCHITECTURE: dict[str, int | float | bool] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
MODEL = {
    "source": "scratch",
    "vocab_size": 400,
    "architecture": ARCHITECTURE,
    "pretrain": {"steps": 4, "batch_size": 4, "lr": 5.0e-3},
}
DATA = {
    "source": "world",
    "sequence_length": 32,
    "num_train_sequences": 12,
    "num_heldout_sequences": 5,
    "num_second_domain_sequences": 3,
    "num_people": 6,
}


def tiny_profile(name: str = "tiny", **data: int) -> Profile:
    """A profile of the invented world; `data` changes its data section."""
    return Profile(
        name=name,
        title=name,
        description="tests",
        model=ModelConfig.model_validate(MODEL),
        data=DataConfig.model_validate(DATA | data),
        train=TrainConfig(steps=2, batch_size=2, micro_batch_size=2, bf16_warmup_steps=1),
        evaluation=EvalConfig(tasks=[TaskConfig(name="people", num_items=10, metric="acc")], batch_size=4),
    )


def fake_wheel(path: Path, members: dict[str, bytes], name: str = "fake-data") -> Wheel:
    """Write a zip archive named as a wheel, and give the pin that fits it."""
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return Wheel(name=name, version="1.0", file=path.name, sha256=sha256, licence="none")
