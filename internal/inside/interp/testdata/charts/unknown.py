ax.imshow([[1, 2], [3, 4]])
ax.set_title("Picture")
