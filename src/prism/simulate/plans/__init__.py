"""A planned training job as an execution graph: its model, its layout, what each stage computes and sends."""
