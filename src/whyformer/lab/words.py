"""What is said around the claims, in a learner's words: titles, openings, and one remark on each claim."""

from __future__ import annotations

TITLE = "whyformer: why a transformer works, proved with real tensors"
PROMISE = (
    "Two facts carry it. Routing: attention connects any two positions in one hop, by content. Order: "
    "attention alone is blind to order, which comes from positions, or from a mask. Each step below gives "
    "its answer, what was found, what was measured against its bound, how far that reaches, and a model for "
    "which the same test says NO."
)
LEGEND = (
    "Bounds set by rounding: T0 equal bit for bit, T1 attention in floating point, T2 products of Jacobians, "
    "T3 sines and cosines, T4 rotary scores, T5 the lead that a winner needs, "
    "T6 what float32 shows, scaled to float64."
)

OPENING = (
    "Three steps",
    "The lab that this grew out of had one head, which is shown here beside a real two-layer circuit.",
)
ACTS = {
    "routing": (
        "Act 1: Routing",
        "How does something said early reach the end? A recurrent net hands it on, step by step. "
        "Attention looks.",
    ),
    "order": (
        "Act 2: Order",
        "Attention sees a bag of tokens. What gives it order, and which orders can it still not tell apart?",
    ),
}
EDGES = ("Where the two facts end", "Both facts have edges. Here they are, computed and then shown.")
OWN_INPUT = (
    "Two layers of attention read it. For each token: the place after its most recent earlier twin, where "
    "the second layer looks, and what it copies from there."
)

REMARKS = {
    "routing.one-hop": (
        "Dark: this output (row) moves when that input (column) is changed. No relay is needed."
    ),
    "routing.window-depth": "A window sees a few keys. Each further layer lets it see a little farther back.",
    "routing.chain": "In a recurrent net, what was said g steps ago has been multiplied g times on its way.",
    "routing.gap-free": (
        "How much of a value arrives depends on the match, and not on where the match stands."
    ),
    "routing.dilution": "What a match keeps of the weight, when everything else takes a little.",
    "routing.fading": "If each step shrinks a signal, many steps leave nothing. What is left, step by step, "
    "on a logarithmic scale:",
    "routing.forget-gates": "A gate that stays open lets the past through whole. That was the LSTM's idea.",
    "routing.state-decay": "A state-space cell keeps the share |a| each step: all of it, where |a| is 1.",
    "routing.prefix-bag": "To the last token of a single layer, the words before it are a bag without order.",
    "routing.induction": "A came, then B; A comes again: say B, by the latest A. One layer notes, one looks.",
    "routing.one-layer-limit": "Four sequences contradict any choice of weights, however wide the layer is.",
    "routing.hops": "Following k pointers, one after the other, takes layers like the logarithm of k.",
    "routing.capacity": (
        "A memory of b bits has 2^b states. More pasts than that, and two must look the same."
    ),
    "order.equivariance": "Shuffle the tokens, and the answers shuffle along: through heads, MLP and norm.",
    "order.bias-automorphisms": (
        "A bias or mask leaves exactly the shuffles that leave the bias itself as it was."
    ),
    "order.causal-mask": (
        "Under a causal mask every place sees another number of tokens. That is order enough."
    ),
    "order.repeated-token": (
        "But it counts nothing where all tokens are equal: an average of equals is the same."
    ),
    "order.bag-of-words": "'dog bites man' and 'man bites dog' are one and the same to it.",
    "order.learned-rows": "A row of its own for each place names the place; two equal rows are one name.",
    "order.sinusoid-rotation": "Moving k places on turns each sine and cosine pair by one fixed angle.",
    "order.sinusoid-shift": (
        "Yet added to the tokens, sinusoids do not make attention care for distance alone."
    ),
    "order.rotary-shift": "Turn queries and keys instead, and only the distance between them is left.",
    "order.toeplitz-bias": "A bias that depends on the distance alone does not care where a text begins.",
    "order.key-only-alibi": (
        "Softmax ignores what a whole row shares: so 'minus the distance' is 'plus the place'."
    ),
}
