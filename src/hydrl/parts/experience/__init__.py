"""What hands over batches and minibatches: collectors, workers, buffers.

May import what all parts share (specs, finite, libraries) and transforms; of a policy and an environment it
knows what TorchRL says of them.
"""
