import numpy as np
ax.scatter(np.array(["2026-01-01", "2026-01-03"], dtype="datetime64[D]"), [1, 2])
ax.set_xticks(np.array(["2026-01-01"], dtype="datetime64[D]"))
ax.set_yticks([1, 2])
