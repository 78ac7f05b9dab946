"""An upgrade without a failed call: the running criproxy starts the new one, hands all over, and finishes its calls.

    old                                   new
    start it, by its own command   ->     read the config, find the runtime and list it
                                   <-     Ready
    answer no more questions, stop all
    that writes, hold pods that ask to
    be let in
    the listeners for questions    ->
    Learned, Take                  ->     take over memory and box, swap the symlink, go to work
                                   <-     Serving
    tell systemd (MAINPID)
    Main                           ->     feed the watchdog
    drain; a pod that still asks
    here is let in there:
    AdmitMessage, ResizeMessage    ->     the one that writes to the box
                                   <-     Done
    end

Between the two no disk is touched: one that hangs must not keep the box without control.

Whatever fails before Serving ends the new one, and the old one goes on as if nothing had been.
"""
