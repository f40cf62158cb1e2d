import numpy as np
at = np.arange(2)
ax.bar(at, [1, 2], 0.4, label="left")
ax.bar(at + 0.4, [3, 4], 0.4, label="right")
ax.set_xticks(at + 0.2, ["p", "q"])
