// Command idle is the least HTTP server in Go. The benchmark compares the
// memory of sandboxd with its.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, "idle:", err)
		os.Exit(1)
	}
	fmt.Printf("serving http://%s\n", listener.Addr())
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}\n")) })
	fmt.Fprintln(os.Stderr, "idle:", http.Serve(listener, nil)) //nolint:gosec // on loopback, for one request
	os.Exit(1)
}
