ax.hist([1, 1, 2, 3], bins=2)
