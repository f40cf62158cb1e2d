ax.bar(["a"], [1])
ax.scatter(["a"], [1])
