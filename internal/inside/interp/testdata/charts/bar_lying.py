ax.barh(["a", "b"], [2, 1])
ax.set_xlabel("Count")
