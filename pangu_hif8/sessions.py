"""A training run that can be stopped, killed and resumed: its journal and its checkpoints.

    <run>/progress/journal.jsonl       one line a step
    <run>/progress/step-00000020/      a checkpoint

Both go when the run is complete. A run resumes from the newest checkpoint of the same identity (settings,
code, model, data, library versions). Where that differs it says in what and starts over, with the old
attempt set aside in <run>/progress.old; when its settings come back, it is taken up again. A checkpoint that
the user named is refused instead; one from elsewhere is copied, with the journal beside it.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from pangu_hif8.checkpoints import (
    Checkpoint,
    checkpoints,
    latest,
    open_checkpoint,
    refuse_other,
    save_checkpoint,
)
from pangu_hif8.differences import differences
from pangu_hif8.errors import Preempted, UserError
from pangu_hif8.journal import Journal, read_journal
from pangu_hif8.records import entry_of
from pangu_hif8.stored_checkpoint import read_checkpoint
from pangu_hif8.train import StepRecord, Trainer
from pangu_hif8.training_state import Parts, gather, restore

PARTS = ("model", "optimizer", "rng")
JOURNAL = "journal.jsonl"


class Session:
    """What one process keeps of a run that is under way. Only rank 0 writes."""

    def __init__(
        self,
        directory: Path,
        trainer: Trainer,
        identity: dict[str, Any],
        settings: dict[str, Any],
        resume: Path | str = "auto",
    ) -> None:
        """`identity` decides what may be resumed; `settings`, the configuration, says what differs."""
        self.root, self.aside = directory / "progress", directory / "progress.old"
        self.trainer, self.identity, self.settings = trainer, identity, settings
        self.resumed_from: list[int] = []
        self.losses: list[float] = []
        self.journal: Journal | None = None
        found = self._agreed(resume)
        self.step = found.step if found else 0
        if found:
            self._restore(found)
        trainer.ranks.wait()  # all have read before the first one writes
        trainer.ranks.on_main(lambda: self._settle(found))

    def _agreed(self, resume: Path | str) -> Checkpoint | None:
        """The checkpoint to go on from: rank 0 looks, because two nodes may not see the same disk."""
        chosen: list[Checkpoint | None] = []
        ranks = self.trainer.ranks
        ranks.on_main(lambda: chosen.append(self._find(resume)))
        path = ranks.all(chosen[0].path if chosen and chosen[0] else None)[0]
        if chosen or path is None:
            return chosen[0] if chosen else None
        return read_checkpoint(path)

    def _find(self, resume: Path | str) -> Checkpoint | None:
        if resume == "never":
            return None
        if resume != "auto":
            chosen = open_checkpoint(Path(resume))
            self._refuse_other(chosen)
            return chosen
        found = latest(self.root)
        try:
            if found:
                self._refuse_other(found)
        except UserError as reason:
            print(f"not resumed: {reason}", flush=True)
            return self._set_aside_earlier()
        return found

    def _refuse_other(self, found: Checkpoint) -> None:
        try:
            refuse_other(found, self.identity)
        except UserError as error:
            odd = differences(found.facts.get("settings"), self.settings, "{name} {old} there, {new} here")
            raise UserError(f"{error}" + (f" (settings that differ: {odd})" if odd else "")) from error

    def _set_aside_earlier(self) -> Checkpoint | None:
        """This run's own newest checkpoint in progress.old, where an attempt of another kind came between."""
        for found in checkpoints(self.aside):
            try:
                refuse_other(found, self.identity)
                found.verify()
                return found
            except UserError:
                continue
        print("starting over", flush=True)
        return None

    def _restore(self, found: Checkpoint) -> None:
        scaling = self.trainer.scaling
        names = PARTS if scaling is None else (*PARTS, "scaling")
        restore(self.trainer, {name: found.tensors(name) for name in names})
        if scaling is not None:
            scaling.set_mode(found.facts["mode"])
        self.trainer.num_skipped_in_row = found.facts["num_skipped_in_row"]
        self.resumed_from = [*found.facts["resumed_from"], found.step]
        if self.trainer.ranks.is_main:
            print(f"resumed after step {found.step}", flush=True)

    def _settle(self, found: Checkpoint | None) -> None:
        """Leave in progress/ what this attempt goes on from, and nothing that comes after it."""
        if found is None:
            self._set_aside()
        elif found.path.parent.resolve() != self.root.resolve():
            self._bring(found)
        for other in checkpoints(self.root):
            if other.step > self.step:
                shutil.rmtree(other.path)
        self.journal = Journal.resume(self.root / JOURNAL, self.step)

    def _set_aside(self) -> None:
        """An attempt that has a checkpoint takes the place of the one set aside before; another just goes."""
        if checkpoints(self.root):
            shutil.rmtree(self.aside, ignore_errors=True)
            self.root.rename(self.aside)
        shutil.rmtree(self.root, ignore_errors=True)

    def _bring(self, found: Checkpoint) -> None:
        """Copy a checkpoint that lies elsewhere, and the journal beside it, before anything here is moved."""
        self.root.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=self.root.parent, prefix=".progress.", suffix=".tmp"))
        try:
            shutil.copytree(found.path, new / f"step-{found.step:08d}")
            beside = [d / JOURNAL for d in (found.path.parent, self.root) if (d / JOURNAL).is_file()]
            if beside:
                shutil.copyfile(beside[0], new / JOURNAL)
            Journal.resume(new / JOURNAL, found.step).close()  # refuses one that does not reach that step
            self._set_aside()
            new.rename(self.root)
        except OSError as error:
            raise UserError(f"cannot copy {found.path}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def after(self, record: StepRecord) -> None:
        """Journal a step; write a checkpoint where one is due. Raises Preempted when told to stop."""
        self.step = record.step
        self.losses.append(record.loss)
        if self.journal:
            self.journal.append(entry_of(record, self.trainer.scaling))
        every, last = self.trainer.settings.checkpoint_every, record.step == self.trainer.settings.steps
        stopping = self.trainer.stopping and not last
        if stopping or (every and record.step % every == 0 and not last):
            self.save()
        if stopping:
            raise Preempted(record.step)

    def save(self) -> None:
        """Write a checkpoint now. Every rank has to call it."""
        parts = gather(self.trainer)
        self.trainer.ranks.on_main(lambda: self._write(parts))
        self.losses = []

    def _write(self, parts: Parts) -> None:
        assert self.journal
        self.journal.sync()
        score = sum(self.losses) / len(self.losses) if self.losses else None
        keep = self.trainer.settings.keep_checkpoints
        save_checkpoint(self.root, self.step, parts, self._facts(), keep_last=keep, score=score)

    def _facts(self) -> dict[str, Any]:
        scaling = self.trainer.scaling
        return {
            "identity": self.identity,
            "settings": self.settings,
            "mode": scaling.phase if scaling else None,
            "num_skipped_in_row": self.trainer.num_skipped_in_row,
            "resumed_from": self.resumed_from,
            "world_size": self.trainer.ranks.world,
        }

    def entries(self) -> list[dict[str, Any]]:
        """All steps so far, those of earlier attempts included."""
        return read_journal(self.root / JOURNAL)

    def close(self) -> None:
        """Stop writing; what is there stays."""
        if self.journal:
            self.journal.close()

    def remove(self) -> None:
        """The run is complete: its files say all that these said."""
        self.close()
        if self.trainer.ranks.is_main:
            for directory in (self.root, self.aside):
                shutil.rmtree(directory, ignore_errors=True)
