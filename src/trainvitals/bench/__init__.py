"""How fast, large and exact a model is: `trainvitals bench` and `run.benchmark`.

plan        what is to be measured
inputs      the model's inputs, made from a specification: the same numbers in every process
measuring   the parent: starts a child for each variant, times them in interleaved rounds, composes the result
child       a child process as the parent sees it
worker      the child's side: loads one variant, answers questions about it
torch_models, onnx_models   loading and converting. Imported in children only, as torch and onnxruntime are
model_files sizes and data types from the files, without loading them
commits     the code of another commit, to compare with
agreement   how far two sets of answers are apart
beside      a benchmark beside a training, or in place of it for a moment
"""
