import numpy as np
ax.scatter(np.array([1, 2.123456789]), np.array([3, 4]), label="points")
ax.scatter([5], [6])
ax.axhline(4)
ax.grid()
ax.set(xlabel="Weight (kg)", xticks=[1, 5], yticks=[3, 6])
