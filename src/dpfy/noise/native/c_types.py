"""Describe arrays, vectors and tables to C: the structures and argument types of ``kernels.c``.

Tests: tests/noise/native/test_kernels.py.
"""

import ctypes
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from dpfy.noise import rejection
from dpfy.noise.lattice import far_from_zero
from dpfy.noise.past import Band, Nodes, Past, Sums
from dpfy.noise.rejection_table import CELL_BITS, RECTANGLES, RejectionTable
from dpfy.noise.vector import Piece, Vector


class CTable(ctypes.Structure):
    """``struct table`` of kernels.c."""

    _fields_ = [
        ("column", ctypes.c_void_p),
        ("level", ctypes.c_void_p),
        ("stddev", ctypes.c_double),
        ("unit", ctypes.c_double),
        ("margin", ctypes.c_double),
        ("tail", ctypes.c_int64),
        ("certain", ctypes.c_int32),
        ("last", ctypes.c_int32),
    ]


class CPiece(ctypes.Structure):
    """``struct piece`` of kernels.c."""

    _fields_ = [
        ("begin", ctypes.c_ssize_t),
        ("end", ctypes.c_ssize_t),
        ("values", ctypes.c_void_p),
        ("singles", ctypes.c_void_p),
        ("factor", ctypes.c_double),
        ("out", ctypes.c_void_p),
    ]


class CPast(ctypes.Structure):
    """``struct past`` of correlation.h."""

    _fields_ = [
        ("kind", ctypes.c_int32),
        ("rows", ctypes.c_ssize_t),
        ("row", ctypes.POINTER(ctypes.c_void_p)),
        ("target", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("decay", ctypes.c_void_p),
        ("limit", ctypes.c_void_p),
        ("unit", ctypes.c_double),
    ]


class CVector(ctypes.Structure):
    """``struct vector`` of kernels.c."""

    _fields_ = [
        ("piece", ctypes.POINTER(CPiece)),
        ("pieces", ctypes.c_ssize_t),
        ("unit", ctypes.c_double),
        ("grid", ctypes.c_double),
        ("far", ctypes.c_double),
        ("past", ctypes.POINTER(CPast)),
    ]


class CNumbers(ctypes.Structure):
    """``struct numbers`` of kernels.c."""

    _fields_ = [("first", ctypes.c_void_p), ("count", ctypes.c_ssize_t)]


def numbers_for_c(tensors: Sequence[torch.Tensor]) -> "ctypes.Array[CNumbers]":
    """Return the memory of tensors as numbers of 32 bits; it is valid while the tensors are."""
    if not all(each.is_contiguous() and each.is_cpu and not each.nbytes % 4 for each in tensors):
        raise TypeError("Expected tensors of whole numbers of 32 bits in main memory without gaps.")
    arrays = (CNumbers(each.data_ptr(), each.nbytes // 4) for each in tensors)
    return (CNumbers * len(tensors))(*arrays)


def table_for_c(table: RejectionTable) -> CTable:
    """Return a rejection table as C sees it; it is valid while the table's arrays are."""
    return CTable(
        _address(table.column),
        _address(table.level),
        table.spread * 2.0**CELL_BITS,
        table.height,
        rejection.MARGIN,
        rejection.TAIL,
        table.certain,
        RECTANGLES - 1,
    )


def vector_for_c(vector: Vector) -> CVector | None:
    """Return a vector as C sees it, or None unless all of it is contiguous in main memory.

    It is valid while the tensors are.
    """
    if vector not in _seen:
        _seen[vector] = _seen_by_c(vector)
    return _seen[vector]


# every segment of noise asks for the whole vector, which has a piece for each parameter
_seen: "WeakKeyDictionary[Vector, CVector | None]" = WeakKeyDictionary()


def _seen_by_c(vector: Vector) -> CVector | None:
    if not all(map(_is_plain, vector.pieces)):
        return None
    pieces = [
        CPiece(
            piece.begin,
            piece.end,
            None if single else piece.sums.data_ptr(),
            piece.sums.data_ptr() if single else None,
            piece.factor,
            None if piece.out is None else piece.out.data_ptr(),
        )
        for piece in vector.pieces
        for single in [piece.sums.dtype == torch.float32]
    ]
    return CVector(
        (CPiece * len(pieces))(*pieces),
        len(pieces),
        vector.unit,
        vector.grid,
        far_from_zero(vector.grid),
        None if vector.past is None else ctypes.pointer(past_for_c(vector.past)),
    )


def past_for_c(past: Past) -> CPast:
    """Return what a row rests on as C sees it; it is valid while the arrays are."""
    dtype: npt.DTypeLike = np.float64
    match past:
        case Band(rows=rows):
            kind, unit, dtype = 0, past.unit, np.int32
            given = {"target": _checked(past.target, dtype), "weight": _checked(past.weights)}
        case Sums(rows=rows):
            kind, unit = 1, 1.0
            given = {"weight": _checked(past.weights), "decay": _checked(past.decays)}
            given["limit"] = _checked(past.limits)
        case Nodes(rows=rows):
            kind, unit = 2, 1.0
            given = {"target": _checked(past.target)}
        case _:
            raise TypeError(f"Expected a band, sums or nodes, got {type(past).__name__}.")
    addresses = [_checked(row, dtype) for row in rows]
    row = (ctypes.c_void_p * len(addresses))(*addresses)
    return CPast(kind=kind, rows=len(row), row=row, unit=unit, **given)


def array_of(dtype: npt.DTypeLike, dimensions: int = 1) -> Any:
    """Return an argument type of ctypes: a contiguous array of this dtype."""

    class Pointer:
        @staticmethod
        def from_param(array: npt.NDArray[Any]) -> ctypes.c_void_p:
            return ctypes.c_void_p(_checked(array, dtype, dimensions))

    return Pointer


def declare(function: Any, result: Any, *arguments: Any) -> Any:
    """Declare the types of a C function and return it.

    Its first arguments are the address of ``GOMP_parallel``, a number of threads and a number of
    values.
    """
    function.restype, function.argtypes = (
        result,
        (ctypes.c_void_p, ctypes.c_uint, ctypes.c_ssize_t, *arguments),
    )
    return function


def _is_plain(piece: Piece) -> bool:
    """Return whether C can add to a piece."""
    sums, out = piece.sums, piece.out
    if out is None:
        return sums.dtype == torch.float64 and _is_in_memory(sums)
    return (
        sums.dtype in (torch.float64, torch.float32)
        and out.dtype == torch.float32
        and _is_in_memory(sums)
        and _is_in_memory(out)
    )


def _is_in_memory(numbers: torch.Tensor) -> bool:
    """Return whether a tensor is contiguous in main memory."""
    return numbers.is_cpu and numbers.is_contiguous()


def _checked(
    array: npt.NDArray[Any], dtype: npt.DTypeLike = np.float64, dimensions: int = 1
) -> int:
    """Return the address of an array, and refuse what C would read as something else."""
    if array.dtype != dtype or array.ndim != dimensions or not array.flags.carray:
        raise TypeError(
            f"Expected {dimensions} dimensions of {np.dtype(dtype)} without gaps, got "
            f"{array.ndim} of {array.dtype}."
        )
    return _address(array)


def _address(array: npt.NDArray[Any]) -> int:
    """Return the address of a contiguous array; numpy's own way leaves cyclic garbage behind."""
    address: int = array.__array_interface__["data"][0]
    return address
