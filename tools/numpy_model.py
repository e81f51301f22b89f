# SPDX-License-Identifier: MIT
"""Makes the programs' data, first weights and gradients in NumPy, written from notes/generator.md
and the pages that it names. tests/programs/digests_test.py compares the programs with it.

What the note calls fp32 is float32 here, so weights and data have the programs' bits. Losses and
gradients are in float64, so the programs' differ from them by the programs' own rounding alone. A
function `stored`, of STORED, rounds what a program stores in 16 bits, as the program does."""
import math
from dataclasses import dataclass

import numpy as np
from runs import ROOT

CORPUS = ROOT / "notes/corpus.txt"


@dataclass
class Case:
    """The options of one run, and its ranks. Defaults are the programs' for an MLP."""
    task: str
    width: int = 256
    layers: int = 8
    batch: int = 32
    accumulate: int = 1
    lr: float = 0.002  # from lr down to clip: for tools/in_pytorch.py alone, which has an Adam
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 0.0
    seed: int = 1
    ranks: int = 1
    heads: int = 8  # heads and all below are a llama's
    kv_heads: int = 0  # with 0 a program chooses; here this and hidden must be given
    hidden: int = 0
    sequence: int = 128
    tokens: str = ""
    vocab: int = 256
    recompute: bool = False

    def options(self):
        """Returns the options that differ from the defaults, as words of a command line."""
        return [word for name, value in vars(self).items()
                if name != "ranks" and value != getattr(Case, name, None)
                for word in ("--" + name.replace("_", "-"), str(value)) if word != "True"]

    def shapes(self):
        """Returns (inputs, outputs) of each layer of an MLP."""
        if self.task == "toy":
            return [(128, 512), (512, 10)]
        last = 256 if self.task == "text" else self.width
        return [(self.width, self.width)] * (self.layers - 1) + [(self.width, last)]

    def tensors(self):
        """Returns, for each layer, {name: shape} of its tensors, in their order."""
        if self.task == "llama":
            w, f, kv = self.width, self.hidden, self.width // self.heads * self.kv_heads
            block = {"input_layernorm": (w,), "post_attention_layernorm": (w,),
                     "self_attn.q_proj": (w, w), "self_attn.k_proj": (kv, w),
                     "self_attn.v_proj": (kv, w), "self_attn.o_proj": (w, w),
                     "mlp.gate_proj": (f, w), "mlp.up_proj": (f, w), "mlp.down_proj": (w, f)}
            return [{"model.embed_tokens.weight": (self.vocab, w)},
                    *({f"model.layers.{l}.{name}.weight": shape for name, shape in block.items()}
                      for l in range(self.layers)),
                    {"model.norm.weight": (w,), "lm_head.weight": (self.vocab, w)}]
        biases = self.task != "toy"  # which has neither biases nor ReLU
        return [{f"layers.{l}.weight": (outputs, inputs), f"layers.{l}.bias": (outputs * biases,)}
                for l, (inputs, outputs) in enumerate(self.shapes())]

    def sizes(self):
        """Returns the number of parameters of each layer."""
        return [sum(map(math.prod, layer.values())) for layer in self.tensors()]


def to_bf16(x):
    """Returns the nearest bf16 number of each fp32 number, ties to even; NaN stays NaN."""
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7fff) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return np.where(np.isnan(x), x, (rounded & np.uint32(0xffff0000)).view(np.float32))


@np.errstate(over="ignore")
def to_fp16(x):
    return x.astype(np.float16).astype(np.float32)


# By dtype: the function that rounds an fp32 number as a program does when it stores it.
STORED = {"fp32": lambda x: x, "bf16": to_bf16, "fp16": to_fp16}


# uint64 arithmetic in numpy is modulo 2^64; errstate turns off its warning about that for a single
# number. Constants are np.uint64 too, because numpy may turn uint64 and int into float64.
GAMMA = np.uint64(0x9e3779b97f4a7c15)
WEIGHTS, INPUTS, POSITIONS, CODES, FIRST, SECOND = range(6)  # the generator's streams


@np.errstate(over="ignore")
def mix(z):
    z = np.uint64(z) + GAMMA
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
    return z ^ (z >> np.uint64(31))


@np.errstate(over="ignore")
def bits(seed, stream, index):
    key = mix(mix(seed) ^ np.uint64(stream))
    return mix(key + np.uint64(index) * GAMMA)


def uniform(seed, stream, index):
    top = (bits(seed, stream, index) >> np.uint64(40)).astype(np.int64)
    return (top - 2**23).astype(np.float32) * np.float32(2.0**-23)


def grid(rows, columns):
    """Returns the index `row * columns + column` of every element; `rows` lists the rows."""
    return np.uint64(rows)[:, None] * np.uint64(columns) + np.arange(columns, dtype=np.uint64)


def scale(inputs):
    return np.float32(math.sqrt(6 / inputs))


def initial_parameters(case):
    """Returns all parameters in one vector, whose places are the note's global element numbers."""
    parameters = np.zeros(sum(case.sizes()), np.float32)
    numbers = matrices(case, np.arange(parameters.size, dtype=np.uint64))
    for layer, tensors in enumerate(matrices(case, parameters)):
        for tensor, number in zip(tensors, numbers[layer]):
            if tensor.ndim == 1:
                tensor[:] = case.task == "llama"  # a gain is 1, a bias 0
                continue
            factor = scale(tensor.shape[1])
            if case.task == "text" and layer == len(numbers) - 1:
                factor *= np.float32(0.1)
            if case.task == "llama":
                factor = np.float32(0.02) * np.float32(math.sqrt(3))
            tensor[:] = uniform(case.seed, WEIGHTS, number) * factor
    return parameters


def layer_slices(case, vector):
    """Returns each layer's part of a vector, as a view, so that one can assign to it."""
    return np.split(vector, np.cumsum(case.sizes())[:-1])


def matrices(case, vector):
    """Returns each layer's tensors, as views of a vector: (weight, bias), or a llama's tensors."""
    cuts = [np.cumsum([*map(math.prod, layer.values())]) for layer in case.tensors()]
    return [[tensor.reshape(shape) for tensor, shape in zip(np.split(part, cut), layer.values())]
            for part, cut, layer in zip(layer_slices(case, vector), cuts, case.tensors())]


def layer_digests(case, parameters):
    numbers = np.arange(parameters.size, dtype=np.uint64)
    terms = mix(mix(numbers) ^ parameters.view(np.uint32).astype(np.uint64))
    return [int(np.sum(part, dtype=np.uint64)) for part in layer_slices(case, terms)]


def samples_of_step(case, step):
    """Returns all ranks' (inputs, targets) in a step, from 0. They follow the last step's."""
    count = case.batch * case.accumulate * case.ranks
    make = {"text": text_samples, "llama": token_samples}.get(case.task, taught_samples)
    return make(case, np.arange(step * count, (step + 1) * count, dtype=np.uint64))


def text_samples(case, samples):
    codes = uniform(case.seed, CODES, grid(np.arange(256), case.width // 8))
    window = windows(case, samples, np.fromfile(CORPUS, np.uint8), 8)
    return codes[window[:, :8]].reshape(len(samples), case.width), window[:, 8]


def token_samples(case, samples):
    tokens = np.fromfile(case.tokens, "<u2") if case.tokens else np.fromfile(CORPUS, np.uint8)
    window = windows(case, samples, tokens, case.sequence)
    return window[:, :-1], window[:, 1:]


def windows(case, samples, text, length):
    """Returns, for each sample, the `length` elements of `text` that it reads and the next one."""
    positions = bits(case.seed, POSITIONS, samples) % np.uint64(text.size - length)
    return text[positions.astype(np.int64)[:, None] + np.arange(length + 1)]


def rounded_twice(left, right):
    """Returns the product in float32: each term is rounded, then added to those before it."""
    return sum((column[:, None] * row for column, row in zip(left.T, right)), np.float32(0))


def taught_samples(case, samples):
    inputs, outputs = case.shapes()[0][0], case.shapes()[-1][1]
    first = uniform(case.seed, FIRST, grid(np.arange(inputs), 16)) * scale(inputs)
    second = uniform(case.seed, SECOND, grid(np.arange(16), outputs)) * scale(16)
    x = uniform(case.seed, INPUTS, grid(samples, inputs))
    return x, rounded_twice(rounded_twice(x, first), second)


def cross_entropy(y, target, scale=1):
    """Returns the mean loss over the batch, and `scale` times its gradient by y."""
    rows = np.arange(len(y))
    power = np.exp(y - y.max(-1, keepdims=True))
    gradient = power / power.sum(-1, keepdims=True)
    loss = -np.log(gradient[rows, target]).mean()
    gradient[rows, target] -= 1
    return loss, gradient * (scale / len(y))


def loss_and_gradient(case, parameters, x, target, stored=np.float64, scale=1):
    """Returns (loss, gradient) of a batch; x is (sample, element). A step's micro-batches have
    equal numbers of samples, so they can be one batch. stored(numbers) rounds numbers as a program
    that stores them; the gradient is that of scale x loss. A llama ignores `stored` and `scale`."""
    if case.task == "llama":
        gradient = np.zeros_like(parameters)
        y, backward = llama_logits(case, parameters, x, gradient)
        loss, dy = cross_entropy(y.reshape(-1, case.vocab), target.ravel())
        backward(dy.reshape(y.shape))
        return loss, gradient
    layers = matrices(case, parameters)
    relus = 0 if case.task == "toy" else len(layers) - 1  # how many layers end in a ReLU
    activations = [stored(x)]
    for i, (weight, bias) in enumerate(layers):
        y = activations[i] @ weight.T + (bias if bias.size else 0)
        activations.append(y := stored(np.where(y < 0, 0, y) if i < relus else y))

    if case.task == "text":
        loss, backward = cross_entropy(y, target, scale)
    else:
        loss, backward = ((y - target)**2).mean(), 2 * scale * (y - target) / y.size
    backward = stored(backward)
    gradient = np.zeros_like(parameters)
    by_layer = matrices(case, gradient)
    for i in reversed(range(len(layers))):
        if i < relus:
            backward = np.where(activations[i + 1] > 0, backward, 0)
        by_weight, by_bias = by_layer[i]
        by_weight[:] = backward.T @ activations[i]
        by_bias[:] = backward.sum(0)[:by_bias.size]
        if i > 0:
            backward = stored(backward @ layers[i][0])
    return loss, gradient


# The parts of a llama. Each returns y, and a function that takes y's gradient, stores the weights'
# gradients and returns the inputs'. x is (sample, position, element).
def linear(x, weight, gradient):
    def backward(dy):
        gradient[:] = np.einsum("nto,nti->oi", dy, x)
        return dy @ weight
    return x @ weight.T, backward


def rms_norm(x, gain, gradient):
    root = np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)

    def backward(dy):
        gradient[:] = (dy * x / root).sum((0, 1))
        return (dy * gain - x / root**2 * (dy * gain * x).mean(-1, keepdims=True)) / root
    return x / root * gain, backward


def turned(x, sign=1):
    """Applies the rotary embedding to x, (sample, position, ..., element): turns elements i and i +
    half, as one complex number, by an angle that grows with the position. sign = -1 turns back."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * 10000.0**(-np.arange(half) / half)
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(sign * 1j * angles[:, None, None])
    return np.concatenate([z.real, z.imag], -1)


def attention(case, *projected):
    """Causal attention of queries, keys, values. Indices: n is a sample, g a head of keys, h one of
    its heads of queries, d an element; position t attends to position s."""
    q, k, v = (x.reshape(*x.shape[:2], case.kv_heads, -1, case.width // case.heads)
               for x in projected)
    q, k, v = turned(q), turned(k)[:, :, :, 0], v[:, :, :, 0]
    root = math.sqrt(q.shape[-1])
    probs = np.tril(np.exp(np.einsum("ntghd,nsgd->nghts", q, k) / root))
    probs /= probs.sum(-1, keepdims=True)

    def backward(dy):
        dy = dy.reshape(q.shape)
        slopes = np.einsum("ntghd,nsgd->nghts", dy, v)
        slopes = probs * (slopes - (probs * slopes).sum(-1, keepdims=True)) / root
        dq = np.einsum("nghts,nsgd->ntghd", slopes, k)
        dk = np.einsum("nghts,ntghd->nsgd", slopes, q)[:, :, :, None]
        dv = np.einsum("nghts,ntghd->nsgd", probs, dy)
        return [x.reshape(*x.shape[:2], -1) for x in (turned(dq, -1), turned(dk, -1), dv)]
    attention_out = np.einsum("nghts,nsgd->ntghd", probs, v)
    return attention_out.reshape(*attention_out.shape[:2], -1), backward


def block(case, x, gain, second_gain, q, k, v, o, gate, up, down):
    """A llama's block. Each argument after x is a pair: a tensor, its gradient."""
    normed, of_norm = rms_norm(x, *gain)
    projected, of_projected = zip(*(linear(normed, *it) for it in (q, k, v)))
    attention_out, of_attention = attention(case, *projected)
    y, of_o = linear(attention_out, *o)
    x = x + y
    normed, of_second = rms_norm(x, *second_gain)
    (gate, of_gate), (up, of_up) = linear(normed, *gate), linear(normed, *up)
    share = 1 / (1 + np.exp(-gate))
    y, of_down = linear(gate * share * up, *down)

    def backward(dy):
        product = of_down(dy)
        dy = dy + of_second(of_up(product * gate * share) + of_gate(
            product * up * share * (1 + gate * (1 - share))))
        parts = of_attention(of_o(dy))
        return dy + of_norm(sum(back(part) for back, part in zip(of_projected, parts)))
    return x + y, backward


def llama_logits(case, parameters, tokens, gradient=None):
    """Returns (logits, backward) of tokens, (sample, position). backward() takes the gradient by
    the logits, and stores the gradient by the parameters in `gradient`."""
    gradient = np.zeros_like(parameters) if gradient is None else gradient
    (table,), *blocks, (gain, head) = (
        [*zip(*both)] for both in zip(matrices(case, parameters), matrices(case, gradient)))
    x, ways_back = table[0][tokens], []
    for pairs in blocks:
        x, backward = block(case, x, *pairs)
        ways_back.append(backward)
    normed, of_norm = rms_norm(x, *gain)
    y, of_head = linear(normed, *head)

    def backward_of_all(dy):
        dy = of_norm(of_head(dy))
        for backward in reversed(ways_back):
            dy = backward(dy)
        np.add.at(table[1], tokens, dy)
    return y, backward_of_all
