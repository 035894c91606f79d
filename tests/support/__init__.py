"""What the tests between real processes share: peers, buffers with poisoned guards, byte patterns, leak checks."""
