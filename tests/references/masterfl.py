"""Master-FL: Ganguly & Aggarwal 2024, Alg. 1-3, with the corrections that its own Fig. 1 and units ask for.

Rounds count from 1. `loss(t, k)` is F^(t) in [0, 1] of the round that an order-k instance runs. `draw(block, k, place)`
in [0, 1) decides whether the instance of order k at offset place * 2^k of a block is scheduled.
"""

import math


def schedule(block, m, rho, draw):
    """Alg. 1, relative: for tau = 0 ... 2^m - 1, for k = m ... 0: if tau mod 2^k = 0, w.p. rho(2^m) / rho(2^k)."""
    instances = []
    for tau in range(2**m):
        for k in range(m, -1, -1):
            if tau % 2**k == 0 and draw(block, k, tau // 2**k) < rho(2**m) / rho(2**k):
                instances.append({"k": k, "s": tau, "e": tau + 2**k - 1, "F": []})
    return instances


def master(loss, horizon, rounds, draw, c1, c2, delta, scale, on_detect, tests):
    """What happens in every round: dict(t, m, k, F, optimistic, U, failed, restarted)."""

    def rho(t):
        return min(c1 / math.sqrt(t) + c2 / t, 1.0)

    def rho_hat(t):
        return scale * 6 * (math.log2(horizon) + 1) * math.log(horizon / delta) * rho(t)

    log, t, m, block, cause = [], 1, 0, 0, 0
    while t <= rounds:
        t_new, flags = t, 0
        planned = schedule(block, m, rho, draw)
        every, optimistic, first = [], [], True
        while t < t_new + 2**m and t <= rounds:
            tau = t - t_new
            running = min((a for a in planned if a["s"] <= tau <= a["e"]), key=lambda a: (a["e"] - tau, a["k"]))
            f = loss(t, running["k"])
            running["F"].append(f)
            every.append(f)
            instance_losses = running["F"]
            optimistic.append(max(0.0, sum(instance_losses) / len(instance_losses) - rho(len(instance_losses))))
            highest = max(optimistic)  # U_t = max F~ over [t_new, t]
            flags = 0
            for a in planned:  # Test 1: (1/2^k) sum_{tau = s}^{e} F + 9 rho_hat(2^k) <= U_t where t = A.e
                looked_at = (
                    a is running or tests == "all"
                )  # Alg. 3 line 15: "Current A_t is some order k base instance"
                if (
                    looked_at
                    and a["e"] == tau
                    and highest >= sum(every[a["s"] :]) / 2 ** a["k"] + 9 * rho_hat(2 ** a["k"])
                ):
                    flags |= 1
            done = tau + 1
            if sum(f - o for f, o in zip(every, optimistic, strict=True)) / done >= 3 * rho_hat(done):  # Test 2
                flags |= 2
            log.append({"t": t, "m": m, "k": running["k"], "F": f, "optimistic": optimistic[-1], "U": highest,
                        "failed": flags, "restarted": cause if first else 0})  # fmt: skip
            first = False
            t += 1
            if flags:
                break
        cause, block = (2 if flags else 1), block + 1
        largest = math.ceil(math.log2(horizon))
        m = 0 if flags and on_detect == "reset" else min(m + 1, largest)
    return log
