"""`python -m integration.demo`: see ./demo."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  (said here, before what an older one can't even parse)
    sys.exit(f"demo: Python 3.11 or newer is needed, this is {sys.version.split()[0]}: install python3.11.")


def main() -> int:
    """Run the demo; returns the exit status: 0, 1 after an error, 128 + N when stopped by signal N."""
    import grpc

    from integration.demo import DemoError
    from integration.demo.arguments import parse
    from integration.demo.play import Stopped
    from integration.lab.process import LabError

    def say(text: str) -> None:
        print(text, flush=True)

    try:
        options = parse(sys.argv[1:])
        if options.cluster:
            from integration.demo.cluster.play import run
        else:
            from integration.demo.play import run
        run(options, say)
    except Stopped as stop:
        print(f"demo: {stop}", file=sys.stderr)
        return 128 + stop.number
    except KeyboardInterrupt:  # after the play, while the plot is drawn
        return 130
    except grpc.RpcError as error:
        print(
            f"demo: the runtime refused a call: {error.details() if isinstance(error, grpc.Call) else error}",
            file=sys.stderr,
        )
        return 1
    except (DemoError, LabError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
