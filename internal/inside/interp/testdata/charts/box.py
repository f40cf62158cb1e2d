ax.boxplot([[1, 2, 3, 4, 20], [2, 3, 4]], tick_labels=["one", "two"], patch_artist=True)
ax.set_ylabel("Delay (ms)")
