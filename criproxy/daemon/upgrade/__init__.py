"""An upgrade without a failed call: the running criproxy starts the new one, hands all over, and finishes its calls.

    old                                   new
    start it, by its own command   ->     read the config, find the runtime and list it
                                   <-     Ready
    answer no more questions, stop all
    that writes, hold pods that ask to
    be let in
    the listeners for questions    ->
    Learned, Ladder, Take          ->     read config, policy and hold-offs again, take over memory and box,
                                          swap the symlink, go to work
                                   <-     Serving
    tell systemd (MAINPID)
    Main                           ->     feed the watchdog
    drain; a pod that still asks
    here is let in there:
    AdmitMessage, ResizeMessage    ->     the one that writes to the box
                                   <-     Done
    end

What the new one has read before the Take may have changed until then: the old one has followed the files, and obeyed
its operator. So nothing of it is acted on before it was read again (`Reload.read_again`). A file that can't be read at
once, as its disk hangs, ends the new process: the old one knows what holds, and goes on. No other disk is touched
between the two: one that hangs must not keep the box without control.

Whatever fails before Serving ends the new one, and the old one goes on as if nothing had been.
"""
