#!/bin/sh
# The bypass: kubelet's way to its runtime while criproxy is away for longer than a restart takes.
#
#   ended   criproxy has ended (ExecStopPost=): arm the bypass
#   hold    before a start (ExecStartPre=): in a crash loop, leave kubelet in the bypass for a while
#   wait    armed (criproxy-bypass-arm.service): open the bypass unless `close` comes first
#   close   criproxy is ready (ExecStartPost=): cut the bypass, so that kubelet dials again and finds criproxy
#
# Nothing here needs Python, D-Bus or a disk: it works when criproxy can't. What criproxy knows comes by the
# environment: CRIPROXY_LISTEN, CRIPROXY_RUNTIME, CRIPROXY_BYPASS_AFTER_S (seconds, or "never").

directory=/run/criproxy
socket=$directory/bypass.sock
crashes=$directory/bypass.crashes
uses=$directory/bypass.uses
loop_crashes=5
loop_window_s=300
hold_s=30
# Without a bypass kubelet has no other way.
pause_s=5
# Systemd may refuse, or not answer for 25 s, as amid a daemon-reload on a starved node. `ended` asks it for so long, as
# TimeoutStopSec= bounds it and the runtime's stop waits for it.
ended_s=10
answer_s=4
wait_tries=20
# What is in the way stays there: see RestartPreventExitStatus= of criproxy-bypass-arm.service.
in_the_way=78

uptime_s() { cut -d . -f 1 /proc/uptime; }

# Whether criproxy has crashed so often lately that a restart alone does not help. By uptime: the clock may jump.
is_looping() {
    [ "$(wc -l 2>/dev/null <"$crashes")" = "$loop_crashes" ] || return 1
    [ $(($(uptime_s) - $(head -n 1 "$crashes"))) -lt "$loop_window_s" ]
}

count_crash() {
    { tail -n $((loop_crashes - 1)) "$crashes" 2>/dev/null; uptime_s; } >"$crashes.new" && mv -f "$crashes.new" "$crashes"
}

# Each call is bounded, also once the time is over.
ask() {
    left_s=$((until_s - $(uptime_s)))
    timeout "$((left_s > answer_s ? answer_s : left_s > 1 ? left_s : 1))" systemctl "$@"
}

# Nothing starts any more while the machine goes down, and never what is masked, missing or wrong.
is_vain() {
    if [ "$(ask is-system-running)" = stopping ]; then return 0; fi
    case "$(ask show --property=LoadState --value "$1")" in loaded | '') return 1 ;; esac
}

tell_systemd() {
    until ask --no-block "$@"; do
        if is_vain "$2" || [ "$(uptime_s)" -ge "$until_s" ]; then return 1; fi
        sleep 0.5
    done
}

ended() {
    if [ "${SERVICE_RESULT:-success}" = success ]; then rm -f "$crashes"; else count_crash; fi
    until_s=$(($(uptime_s) + ended_s))
    # What waits already goes on; in a crash loop there is nothing to wait for.
    if is_looping; then verb=restart; else verb=start; fi
    tell_systemd "$verb" criproxy-bypass-arm.service
    # Nothing here lends what nobody bounds: one that waits already goes on.
    tell_systemd start criproxy-withdraw.timer
}

hold() {
    is_looping || return 0
    until_s=$(($(uptime_s) + pause_s))
    # What opens the bypass may try for much longer, in vain.
    while [ "$(uptime_s)" -lt "$until_s" ] && ask --quiet is-active criproxy-bypass-arm.service; do sleep 0.5; done
    if ask --quiet is-active criproxy-bypass.socket; then
        wait_s=$hold_s told="the bypass stays open for $hold_s s"
    else
        left_s=$((until_s - $(uptime_s)))
        wait_s=$((left_s > 0 ? left_s : 0))
        told="no bypass is open, and the next start comes in $wait_s s"
    fi
    echo "criproxy has crashed $loop_crashes times in $loop_window_s s: $told" >&2
    sleep "$wait_s"
}

wait_and_open() {
    [ "$CRIPROXY_BYPASS_AFTER_S" != never ] || return 0
    is_looping || sleep "$CRIPROXY_BYPASS_AFTER_S"
    tries=$wait_tries
    while :; do
        open_unless_back && return
        status=$? tries=$((tries - 1))
        [ "$status" != "$in_the_way" ] && [ "$tries" -gt 0 ] || return "$status"
        sleep 1
    done
}

open_unless_back() {
    systemctl --quiet is-active criproxy.service
    case $? in
        0) ;;
        3 | 4) open_bypass ;; # 4: there is no such unit
        *) return 1 ;; # no answer
    esac
}

open_bypass() {
    listen=$CRIPROXY_LISTEN
    [ "$(readlink -- "$listen")" != "$socket" ] || [ ! -S "$socket" ] || return 0
    if [ -e "$listen" ] && [ ! -L "$listen" ]; then
        echo "no bypass: $listen is in the way and not criproxy's symlink; remove it" >&2
        return "$in_the_way"
    fi
    systemctl start criproxy-bypass.socket || return 1
    chown --reference="$CRIPROXY_RUNTIME" "$socket" && chmod --reference="$CRIPROXY_RUNTIME" "$socket"
    mkdir -p -m 755 -- "$(dirname -- "$listen")"
    # A name that criproxy clears away as a leftover of its own, and a rename, so that no moment is without a way.
    ln -sfn -- "$socket" "$listen.0~" && mv -fT -- "$listen.0~" "$listen" || return 1
    echo "bypass open: $listen -> $CRIPROXY_RUNTIME; pods that start now are not bounded" >&2
    echo $(($(cat "$uses" 2>/dev/null || echo 0) + 1)) >"$uses.new" && mv -f "$uses.new" "$uses"
}

close_bypass() {
    # Its time says when the bypass was open last.
    [ ! -S "$socket" ] || touch -c "$uses"
    systemctl stop criproxy-bypass-arm.service criproxy-bypass.socket criproxy-bypass.service
    systemctl stop criproxy-withdraw.timer criproxy-withdraw.service
}

case $1 in
    ended) ended ;;
    hold) hold ;;
    wait) wait_and_open ;;
    close) close_bypass ;;
    *) echo "usage: $0 ended|hold|wait|close" >&2; exit 2 ;;
esac
