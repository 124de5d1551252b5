"""How the backbones of other libraries become ours, a module a kind; `registry` has them all."""
