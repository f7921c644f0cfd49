"""Images, tables, histograms, html, files, alerts and artifacts beside numbers."""

import matplotlib.pyplot as plt
import numpy as np
import wandb

run = wandb.init(project="media")
for step in range(3):
    pixels = np.full((8, 8, 3), step * 50, dtype=np.uint8)
    images = [wandb.Image(pixels + n, caption=f"image {n}") for n in range(2)]
    run.log({"loss": 1.0 / (step + 1), "examples": images})
table = wandb.Table(columns=["id", "guess"])
table.add_data(0, "cat")
table.add_data(1, "dog")
figure = plt.figure()
plt.plot([1, 2])
run.log({"predictions": table, "grads": wandb.Histogram(np.arange(100)), "page": wandb.Html("<b>hi</b>", inject=False)})
run.log({"counted": wandb.Histogram(np_histogram=np.histogram(np.arange(10), bins=5)), "figure": wandb.Image(figure)})
with open("notes.txt", "w") as file:
    file.write("kept")
run.save("notes.txt", policy="now")
run.alert(title="Low accuracy", text="Accuracy is low", level=wandb.AlertLevel.WARN)
artifact = wandb.Artifact("model", type="model")
artifact.add_file("notes.txt")
run.log_artifact(artifact)
run.log({"after": 1.0})
run.finish()
