"""The LSTM of the workloads in JAX, trained by JAX Privacy as its documentation shows.

It is the one network on which JAX Privacy has been the fastest of all peers. Gradients of every
record are formed, clipped and summed for a few records at a time, by its ``clipped_grad``."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_MICROBATCH = 64  # records at a time: the fastest of 16, 32, 64, 128 and all
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def stepper(
    model: Any, data: tuple[torch.Tensor, ...], clip: float, noise_multiplier: float
) -> Callable[[], None]:
    """Return a function that makes one private step on all records.

    Args:
        model: The network in torch, whose weights the one in JAX begins with.
        data: Tokens and labels of all records.
        clip: The clip bound.
        noise_multiplier: The ratio of the noise to the bound.
    """
    if torch.get_num_threads() == 1:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_ONE_THREAD}".strip()
    import jax
    import optax
    from jax import numpy as jnp
    from jax_privacy import clipped_grad

    vectors = jnp.asarray(model.vectors.weight.detach().numpy())
    weights = {
        name: jnp.asarray(p.detach().numpy())
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    tokens, labels = (np.asarray(field) for field in data)
    rows = np.arange(len(tokens))

    def last_state(weights: dict[str, Any], words: Any, suffix: str) -> Any:
        """Return the last hidden state of one direction; gates are in torch's order."""
        own = {name: weights[f"lstm.{name}_l0{suffix}"] for name in _NAMES}
        given = words @ own["weight_ih"].T + own["bias_ih"] + own["bias_hh"]

        def cell(state: Any, x: Any) -> Any:
            hidden, memory = state
            i, f, g, o = jnp.split(x + hidden @ own["weight_hh"].T, 4, axis=-1)
            memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(memory), memory), None

        start = jnp.zeros((words.shape[1], own["weight_hh"].shape[1]))
        return jax.lax.scan(cell, (start, start), given)[0][0]

    def loss(weights: dict[str, Any], x: Any, y: Any) -> Any:
        words = jnp.swapaxes(vectors[x], 0, 1)
        states = [last_state(weights, words, ""), last_state(weights, words[::-1], "_reverse")]
        logits = jnp.concatenate(states, -1) @ weights["head.weight"].T + weights["head.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    gradient = clipped_grad(
        loss, l2_clip_norm=clip, batch_argnums=(1, 2), microbatch_size=_MICROBATCH
    )
    optimizer = optax.sgd(0.01, momentum=0.9)

    @jax.jit
    def update(weights: Any, state: Any, key: Any, x: Any, y: Any) -> Any:
        key, *own = jax.random.split(key, 1 + len(weights))
        sums = gradient(weights, x, y)
        noisy = {
            name: (total + noise_multiplier * clip * jax.random.normal(each, total.shape)) / len(x)
            for (name, total), each in zip(sums.items(), own, strict=True)
        }
        updates, state = optimizer.update(noisy, state)
        return optax.apply_updates(weights, updates), state, key

    now = (weights, optimizer.init(weights), jax.random.key(0))

    def step() -> None:
        nonlocal now
        now = jax.block_until_ready(update(*now, tokens[rows], labels[rows]))

    return step


_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
