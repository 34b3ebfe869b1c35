"""Several memory-mapped files read as one array along the first axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


class ShardedArray:
    """Read-only. An index, a slice or an integer index array gives a copy of those rows, in that order."""

    def __init__(self, parts: Sequence[npt.NDArray[Any]], row_shape: tuple[int, ...], dtype: Any) -> None:
        """`parts` are arrays [n_i, *row_shape]; there may be none."""
        self._parts = list(parts)
        self._ends = np.cumsum([len(part) for part in self._parts], dtype=np.int64)
        self.dtype = np.dtype(dtype)
        self.shape = (int(self._ends[-1]) if self._parts else 0, *row_shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        if isinstance(key, slice):
            return self._rows(np.arange(*key.indices(len(self)), dtype=np.int64))
        indices = np.asarray(key, np.int64) if isinstance(key, list) and not key else np.asarray(key)
        if isinstance(key, tuple) or indices.dtype.kind not in "iu" or indices.ndim > 1:
            raise TypeError(f"an index, a slice or a one-dimensional integer array is needed, not {key!r}")
        found = self._rows(self._checked(np.atleast_1d(indices).astype(np.int64)))
        return found if indices.ndim else found[0]

    def _checked(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        outside = (indices < -len(self)) | (indices >= len(self))
        if outside.any():
            raise IndexError(f"index {indices[outside][0]} is outside of {len(self)} rows")
        return np.where(indices < 0, indices + len(self), indices)

    def _rows(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        rows = np.empty((len(indices), *self.shape[1:]), self.dtype)
        files = np.searchsorted(self._ends, indices, side="right")
        for file in np.unique(files):
            here = files == file
            first = self._ends[file] - len(self._parts[file])
            rows[here] = self._parts[file][indices[here] - first]
        return rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """All rows in memory; meant for small splits and document starts."""
        return self[:].astype(dtype or self.dtype, copy=False)
