"""In-batch softmax and its gradients in float64 NumPy, one query after the other."""

import numpy as np


def reference(queries, candidates, allowed, tau, bidirectional):
    """Loss and gradients by hand: softmax cross entropy over the allowed candidates.

    `allowed[i]` is the set of candidates in the denominator of query i.
    """
    loss, grad_q, grad_c = 0.0, np.zeros_like(queries), np.zeros_like(candidates)
    weight = 1.0 / len(queries) / (2 if bidirectional else 1)
    for i, query in enumerate(queries):
        members = sorted(allowed[i])
        logits = candidates[members] @ query / tau
        p = np.exp(logits - logits.max())
        p /= p.sum()
        own = members.index(i)
        loss -= weight * np.log(p[own])
        p[own] -= 1
        grad_q[i] += weight * p @ candidates[members] / tau
        grad_c[members] += weight * np.outer(p, query) / tau
    if bidirectional:
        for j in range(len(queries)):
            members = [i for i in range(len(queries)) if i == j or j in allowed[i]]
            logits = queries[members] @ candidates[j] / tau
            p = np.exp(logits - logits.max())
            p /= p.sum()
            own = members.index(j)
            loss -= weight * np.log(p[own])
            p[own] -= 1
            grad_c[j] += weight * p @ queries[members] / tau
            grad_q[members] += weight * np.outer(p, candidates[j]) / tau
    return loss, grad_q, grad_c


def unit(rng, rows, dim=7):
    """Random rows of unit length."""
    x = rng.normal(size=(rows, dim))
    return x / np.linalg.norm(x, axis=1, keepdims=True)
