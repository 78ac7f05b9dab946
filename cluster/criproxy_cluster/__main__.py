from criproxy_cluster.cli import main

main()
