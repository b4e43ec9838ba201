"""Verifying Ed25519 (RFC 8032, section 5.1.7) with integers, as an independent reference. Slow, and not for secrets."""

from __future__ import annotations

import hashlib

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
ROOT = pow(2, (P - 1) // 4, P)

Point = tuple[int, int]


def add(a: Point, b: Point) -> Point:
    """The sum on the twisted Edwards curve -x^2 + y^2 = 1 + d x^2 y^2."""
    (x1, y1), (x2, y2) = a, b
    k = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + k, P - 2, P)
    y = (y1 * y2 + x1 * x2) * pow(1 - k, P - 2, P)
    return x % P, y % P


def times(scalar: int, point: Point) -> Point:
    result = (0, 1)
    while scalar:
        if scalar & 1:
            result = add(result, point)
        point, scalar = add(point, point), scalar >> 1
    return result


def decode(data: bytes) -> Point:
    number = int.from_bytes(data, "little")
    y, sign = number & ((1 << 255) - 1), number >> 255
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT % P
    assert (x * x - square) % P == 0
    return (P - x if x & 1 != sign else x), y


BASE = decode((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    scalar = int.from_bytes(signature[32:], "little")
    digest = hashlib.sha512(signature[:32] + public + message).digest()
    challenge = int.from_bytes(digest, "little") % ORDER
    return scalar < ORDER and times(scalar, BASE) == add(decode(signature[:32]), times(challenge, decode(public)))
