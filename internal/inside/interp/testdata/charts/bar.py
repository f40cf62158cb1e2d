ax.bar(["north", "south"], [3, 4.5], label="2025")
ax.set(title="Sales", xlabel="Region", ylabel="Money (EUR)")
