"""The job file that `diffbatch init` writes: every kind of entry once, with comments."""

STARTER = """\
# A diffbatch job. `diffbatch plan FILE` shows what it would make, `diffbatch run FILE` makes it.

model: demo                     # `demo` comes with diffbatch; or a local folder, or a hub id
# output: outputs/first         # run folder; default outputs/<name of this file>
# name: "{index:05d}-{slug}-{seed}"    # file names; must differ for every request
# format: png                   # png jpg webp | mp4 gif webm | npy
# dtype: bfloat16               # auto float32 bfloat16 float16

defaults:                       # for every prompt that does not say otherwise
  height: 64
  width: 64
  num_frames: 1                 # more frames make a clip
  num_inference_steps: 8
  guidance_scale: 4.0
  seed: 0

prompts:
  # A text is one request. Quote it if it holds ": " or " #", or looks like a number.
  - a red circle on a white background
  - "breaking news: a blue square"

  # A mapping has values of its own. Two seeds make two pictures.
  - prompt: a green triangle on a black background
    seed: [1, 2]
    guidance_scale: 6.0

  # Every combination of the values: 4 requests.
  - prompt: a {color} {shape}
    with: {color: [red, blue], shape: [circle, square]}

  # A file of prompts: txt csv tsv jsonl json yaml parquet; path relative to this file.
  # Columns such as seed or negative_prompt override the values above.
  # - file: prompts.csv
  #   column: prompt
  #   limit: 100

# parallel: {replicas: auto, pp: 1, cfg: 1, tp: 1, ulysses: 1, ring: 1}
"""
