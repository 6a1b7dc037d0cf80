"""Percentiles and what a load felt like."""
import math
import statistics

GOODPUT_LIMITS = (500, 50)  # TTFT and TPOT of a request, in milliseconds


def percentile(values, percent):
    """The smallest value that `percent` of the values do not exceed (nearest rank); nan without values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def median(values):
    values = [v for v in values if v is not None and not math.isnan(v)]
    return statistics.median(values) if values else math.nan


def mean(values):
    return statistics.fmean(values) if values else math.nan


def gaps(times):
    return [b - a for a, b in zip(times, times[1:])]


def ttft(request):
    return (request["times"][0] - request["start"]) * 1e3


def tpot(request):
    """Milliseconds per token after the first one; nan without a second."""
    count = request["output_tokens"] - 1
    return (request["times"][-1] - request["times"][0]) * 1e3 / count if count > 0 else math.nan


def is_good(request, limits):
    """A request of a single token has no TPOT to be over the limit."""
    ttft_limit, tpot_limit = limits
    return ttft(request) <= ttft_limit and not tpot(request) > tpot_limit


def summarize(result, limits=GOODPUT_LIMITS):
    """Of one load's requests: throughput, means and percentiles in milliseconds, share of prompt tokens from the cache.
    Goodput counts the requests within `limits`."""
    requests = result["requests"]
    first = [ttft(r) for r in requests]
    per_token = [t for r in requests if not math.isnan(t := tpot(r))]
    between = [gap * 1e3 for r in requests for gap in gaps(r["times"])]
    num_prompt = sum(r["prompt_tokens"] for r in requests)
    cached = [r["cached_tokens"] for r in requests]
    summary = {
        "wall_s": result["wall_s"],
        "request_rate": len(requests) / result["wall_s"],
        "goodput": sum(is_good(r, limits) for r in requests) / result["wall_s"],
        "output_rate": sum(r["output_tokens"] for r in requests) / result["wall_s"],
        "total_rate": sum(r["output_tokens"] + r["prompt_tokens"] for r in requests) / result["wall_s"],
        "cached_share": math.nan if None in cached else sum(cached) / num_prompt,
    }
    for name, values in (("ttft", first), ("tpot", per_token), ("itl", between)):
        summary[f"{name}_mean"] = mean(values)
        for percent in (50, 90, 99):
            summary[f"{name}_p{percent}"] = percentile(values, percent)
    return summary


def summarize_interference(result):
    """Of a running stream (the first request): its gaps until a long prompt had its first token, and those of the same tokens without it."""
    stream, long_prompt = result["requests"]
    came, answered = long_prompt["start"], long_prompt["times"][0]
    if stream["times"][-1] < answered:
        raise ValueError("the stream ended before the prompt was answered")
    first = sum(time <= came for time in stream["times"])
    idle = [gap * 1e3 for gap in gaps(result["alone"][max(0, first - 1):])]
    busy = [(after - before) * 1e3 for before, after in zip(stream["times"], stream["times"][1:])
            if after > came and before < answered]
    return {
        "idle_p50": percentile(idle, 50), "idle_p99": percentile(idle, 99),
        "busy_p50": percentile(busy, 50), "busy_p99": percentile(busy, 99),
        "busy_count": len(busy), "busy_most": max(busy),
        "long_ttft_s": answered - came,
    }
