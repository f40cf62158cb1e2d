ax.plot(["low", "high"], [1, 2])
ax.set_yticks([1, 2])
