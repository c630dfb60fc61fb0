"""What privacy costs: the time and memory of a private training step, as multiples of plain
torch.
"""
