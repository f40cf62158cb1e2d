ax.plot([1, 2, 4], [1 / 3, 4, 9.5], label="first")
ax.plot([1, 4], [2, 3])
ax.set(title="Growth", xlabel="Time (s)", ylabel="Height [cm]", xticks=[1, 2, 4], yticks=[0, 10])
