"""The ladder on noisy nodes, simulated: how often is an innocent box convicted, how soon a guilty one answered?"""
