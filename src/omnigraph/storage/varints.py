"""Numbers as protocol buffers write them: seven bits to a byte, the lowest first."""


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at this place and the place after it."""
    byte = message[at]
    if byte < 0x80:
        return byte, at + 1
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def as_varint(value: int) -> bytes:
    """A number as bytes."""
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
