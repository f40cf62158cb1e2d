ax.boxplot([[1, 2, 3, 4, 20]], orientation="horizontal", notch=True, tick_labels=["one"])
