"""Tables of positions, and data of lookups: each wrong one beside the right one, told apart by formula."""

import math

import torch

from whyformer.claims.audit.lookup import sequences
from whyformer.subjects import biases, positions

HEADS, WIDTH, SPAN = 8, 16, 160


def frequencies():
    """Right: radians a step, from the paper's formula with a base of 10,000."""
    return positions.frequencies(WIDTH)


def frequencies_of_a_floor():
    """The exponent is floored: -log(1e4) / d // 2."""
    step = -math.log(1e4) / WIDTH // 2
    return torch.exp(step * torch.arange(0, WIDTH, 2, dtype=torch.float64) / 2)


def frequencies_of_the_whole_width():
    """Divided by half of the width where the formula has all of it."""
    return 1e4 ** (-torch.arange(0, WIDTH, 2, dtype=torch.float64) / (WIDTH // 2))


def slopes():
    """Right: 2 to the power of -8h/H, h from 1."""
    return biases.alibi_slopes(HEADS)


def slopes_from_0():
    """h from 0: the first head does not fall off as it should."""
    return 2.0 ** (-8 * torch.arange(HEADS, dtype=torch.float64) / HEADS)


def buckets():
    """Right: the number of each pair's bucket, both ways, for 32 buckets."""
    return biases.t5(torch.arange(32.0)[None])(SPAN)[0]


def buckets_one_sided():
    """All 32 buckets are used for keys before, as if nothing came after."""
    return biases.t5(torch.arange(32.0)[None], signed=False)(SPAN)[0]


def _bucketed(far, exact, count):
    wide = exact + ((far.clamp(min=exact) / exact).log() / math.log(128 / exact) * (count - exact)).long()
    return torch.where(far < exact, far, wide.clamp(max=count - 1))


def buckets_after_first():
    """The sign is turned: keys after have the half of those before."""
    back = torch.arange(SPAN)[None, :] - torch.arange(SPAN)[:, None]
    return (_bucketed(back.abs(), 8, 16) + 16 * (back < 0)).double()


def relative():
    """Right: for each query and key, key less query."""
    places = torch.arange(12.0, dtype=torch.float64)
    return places[None, :] - places[:, None]


def relative_shifted():
    """The shift of a table that is meant for causal use, used both ways: above the diagonal rows run on."""
    table = torch.arange(-11.0, 1, dtype=torch.float64).expand(12, 12)
    return torch.nn.functional.pad(table, (1, 0)).view(13, 12)[1:]


def rotary_of_layers():
    """Right: the base of each layer, by its kind: a window's is 10,000, the others' a million."""
    return torch.stack([positions.frequencies(WIDTH, base) for base in (1e4, 1e4, 1e6)])


def rotary_of_one_base():
    """One base for layers that need two."""
    return positions.frequencies(WIDTH, 1e4).expand(3, -1)


def rotary_of_other_layers():
    """The bases of a mixed stack, counted from the wrong end."""
    return rotary_of_layers().flip(0)


def stretched():
    """Right: a context four times as long, by positions divided by four."""
    return torch.arange(64, dtype=torch.float64)[:, None] * positions.frequencies(WIDTH) / 4


def stretched_twice():
    """The factor is applied twice: in the positions and in the frequencies."""
    return stretched() / 4


TABLES = [
    (frequencies_of_a_floor, frequencies), (frequencies_of_the_whole_width, frequencies),
    (slopes_from_0, slopes), (buckets_one_sided, buckets), (buckets_after_first, buckets),
    (rotary_of_one_base, rotary_of_layers), (rotary_of_other_layers, rotary_of_layers),
    (stretched_twice, stretched), (relative_shifted, relative),
]  # fmt: skip


def data(generator):
    """Right: sequences and questions of which each answer follows an earlier twin."""
    rows, questions = sequences(list(range(60)), 24, 64, generator)
    return torch.tensor(rows), [(q.row, q.place, q.answer) for q in questions]


def data_shifted(generator):
    """The targets are shifted once too often."""
    rows, questions = data(generator)
    return rows, [(b, t, int(rows[b, min(t + 1, rows.shape[1] - 1)])) for b, t, _ in questions]


def data_asked_late(generator):
    """The answer is read one place too late."""
    rows, questions = data(generator)
    return rows, [(b, min(t + 1, rows.shape[1] - 1), answer) for b, t, answer in questions]


def data_with_two_starts(generator):
    """A start is put before the sequences, and the places stay as they were."""
    rows, questions = data(generator)
    return torch.cat([torch.full((len(rows), 2), 60), rows], 1)[:, : rows.shape[1]], questions


def data_given_away(generator):
    """Every answer is the same, so that a guess that looks at nothing has them all."""
    rows, questions = data(generator)
    for b, t, _ in questions:
        twin = (rows[b, :t] == rows[b, t]).nonzero()[-1]
        rows[b, twin + 1] = 7
    return rows, [(b, t, 7) for b, t, _ in questions]


DATA = [(data_shifted, data), (data_asked_late, data), (data_with_two_starts, data), (data_given_away, data)]
