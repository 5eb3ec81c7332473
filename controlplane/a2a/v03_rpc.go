package a2a

import "maps"

// rpcMethods are the methods of the request's version. The two versions share
// no name.
func (c *call) rpcMethods() map[string]rpcMethod {
	if c.version == v03 {
		return rpcMethods03()
	}
	return rpcMethods()
}

// rpcMethods03 are the methods of A2A 0.3. There is none to list tasks.
func rpcMethods03() map[string]rpcMethod {
	old := rpcMethods() // whose params 0.3 has, too
	all := map[string]rpcMethod{
		"message/send":      old["SendMessage"],          // decodeSend knows the version
		"message/stream":    old["SendStreamingMessage"], // likewise
		"tasks/get":         old["GetTask"],
		"tasks/cancel":      old["CancelTask"],
		"tasks/resubscribe": old["SubscribeToTask"],

		"agent/getAuthenticatedExtendedCard": old["GetExtendedAgentCard"],
	}
	maps.Copy(all, rpcPush03())
	return all
}

// noMethod says which version has the method, if one has.
func noMethod(name string, v version) *fault {
	message := "A2A " + string(v) + " has no method " + clip(name)
	if _, ok := rpcMethods()[name]; ok {
		message += "; a request that names no version is taken for 0.3: send A2A-Version: 1.0"
	} else if _, ok := rpcMethods03()[name]; ok {
		message += "; send A2A-Version: 0.3, or use the method of 1.0"
	}
	return errBroken(rpcNoMethod, message)
}
