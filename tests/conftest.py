"""One thread a process: the tensors of the tests are tiny, and threads would only wait for each other."""

import torch

torch.set_num_threads(1)
