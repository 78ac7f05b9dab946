// The rival of the proxy's benchmark: the least that a CRI proxy on grpc-go costs. It opens no message, names no
// method and learns nothing; each call is decoded and encoded by gRPC alone.
//
// main LISTEN RUNTIME: two unix sockets.
package main

import (
	"context"
	"io"
	"log"
	"math"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// raw is a codec that leaves messages as they are.
type raw struct{}

func (raw) Marshal(v interface{}) ([]byte, error) { return *v.(*[]byte), nil }

func (raw) Unmarshal(data []byte, v interface{}) error {
	*v.(*[]byte) = data
	return nil
}

func (raw) Name() string   { return "proto" }
func (raw) String() string { return "proto" }

// proxy carries every call over one connection to the runtime.
type proxy struct {
	runtime *grpc.ClientConn
}

var bothWays = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

func (p proxy) call(_ interface{}, client grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(client)
	fields, _ := metadata.FromIncomingContext(client.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(client.Context(), fields))
	defer cancel()
	runtime, err := p.runtime.NewStream(ctx, bothWays, method)
	if err != nil {
		return err
	}
	go pass(client, runtime, cancel)
	var message []byte
	for first := true; ; first = false {
		err := runtime.RecvMsg(&message)
		if first {
			if header, failed := runtime.Header(); failed == nil {
				client.SetHeader(header)
			}
		}
		if err != nil {
			client.SetTrailer(runtime.Trailer())
			if err == io.EOF {
				return nil
			}
			return err
		}
		if err := client.SendMsg(&message); err != nil {
			return err
		}
	}
}

// pass carries the client's messages to the runtime.
func pass(client grpc.ServerStream, runtime grpc.ClientStream, cancel context.CancelFunc) {
	var message []byte
	for {
		err := client.RecvMsg(&message)
		if err == io.EOF {
			runtime.CloseSend()
			return
		}
		if err != nil || runtime.SendMsg(&message) != nil {
			if status.Code(err) != codes.OK {
				cancel()
			}
			return
		}
	}
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: main LISTEN RUNTIME")
	}
	connection, err := grpc.Dial(
		os.Args[2],
		grpc.WithInsecure(),
		grpc.WithBlock(),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(math.MaxInt32)),
	)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.CustomCodec(raw{}),
		grpc.MaxRecvMsgSize(math.MaxInt32),
		grpc.UnknownServiceHandler(proxy{connection}.call),
	)
	log.Fatal(server.Serve(listener))
}
