import datetime as dt
days = [dt.datetime(2026, 1, 1) + dt.timedelta(days=n) for n in range(3)]
ax.plot(days, [1, 2, 3], label="visits")
ax.set_xticks(days)
ax.set_yticks([1, 3])
