"""Larder beside its peers on one machine, in one run; started by bench/peers/run.

install   sets each peer up in the cache folder, or says why it is absent
models    the files that are measured, made or taken from Larder's own cache
engines   one class per engine: its rates and its answers to a load
load      the load over HTTP; openvino_driver does the same inside OpenVINO's process
measure   what is measured, in turns, kept in the cache so that a run can be taken up again
report    bench/RESULTS.md and the plots (svg)
"""
