ax.pie([1, 3], labels=["a", "b"], startangle=90, autopct="%d%%")
ax.set_title("Shares")
