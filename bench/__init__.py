"""The speeds that whyformer is held to, as ratios measured in one run: ``python -m bench``."""
