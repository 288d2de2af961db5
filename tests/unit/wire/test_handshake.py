import pytest

from wire.errors import HandshakeError
from wire.handshake import MAX_HANDSHAKE_FRAME_BYTES, Handshake, Role, refusal

SECRET = b"sixteen bytes or more"


def transcript(client: Handshake, server: Handshake) -> list[bytes]:
    """Carry frames between both sides until they are done; returns all that was on the wire."""
    client_hello, server_hello = client.hello(), server.hello()
    assert server.receive(client_hello) is None
    client_proof = client.receive(server_hello)
    assert client_proof is not None
    server_proof = server.receive(client_proof)
    assert server_proof is not None
    assert client.receive(server_proof) is None
    return [client_hello, server_hello, client_proof, server_proof]


def test_both_sides_prove_the_secret_without_sending_it() -> None:
    client, server = Handshake(Role.CLIENT, SECRET), Handshake(Role.SERVER, SECRET)
    frames = transcript(client, server)
    assert client.is_done
    assert server.is_done
    assert all(SECRET not in frame for frame in frames)
    assert all(len(frame) <= MAX_HANDSHAKE_FRAME_BYTES for frame in frames)


def test_no_two_handshakes_look_alike() -> None:
    runs = [
        transcript(Handshake(Role.CLIENT, SECRET), Handshake(Role.SERVER, SECRET)) for _ in range(2)
    ]
    assert not set(runs[0]) & set(runs[1])


def test_a_client_with_another_secret_is_refused_and_learns_no_proof() -> None:
    client, server = Handshake(Role.CLIENT, b"another secret!!"), Handshake(Role.SERVER, SECRET)
    server.receive(client.hello())
    proof = client.receive(server.hello())
    assert proof is not None
    with pytest.raises(HandshakeError, match="secrets of the two sides differ"):
        server.receive(proof)
    assert not server.is_done


def test_a_server_with_another_secret_is_refused() -> None:
    client, impostor = Handshake(Role.CLIENT, SECRET), Handshake(Role.SERVER, b"another secret!!")
    client.receive(impostor.hello())
    with pytest.raises(HandshakeError, match="secrets of the two sides differ"):
        client.receive(b"P" + bytes(32))
    assert not client.is_done


def test_a_reflected_proof_is_worthless() -> None:
    client = Handshake(Role.CLIENT, SECRET)
    proof = client.receive(client.hello())  # the attacker echoes whatever it gets
    assert proof is not None
    with pytest.raises(HandshakeError):
        client.receive(proof)


def test_a_replayed_handshake_is_refused() -> None:
    hello, _, proof, _ = transcript(Handshake(Role.CLIENT, SECRET), Handshake(Role.SERVER, SECRET))
    server = Handshake(Role.SERVER, SECRET)
    server.hello()
    assert server.receive(hello) is None
    with pytest.raises(HandshakeError, match="secrets of the two sides differ"):
        server.receive(proof)
    assert not server.is_done


def test_another_version_is_refused_naming_both() -> None:
    client = Handshake(Role.CLIENT, SECRET, version=3)
    server = Handshake(Role.SERVER, SECRET, version=2)
    with pytest.raises(HandshakeError, match=r"client speaks protocol version 3, the server 2"):
        client.receive(server.hello())
    with pytest.raises(HandshakeError, match=r"server speaks protocol version 2, the client 3"):
        server.receive(client.hello())


@pytest.mark.parametrize("frame", [b"", b"GET / HTTP/1.1\r\n", b"Hheadwater", b"P" + bytes(32)])
def test_what_is_no_hello_of_ours_is_refused(frame: bytes) -> None:
    with pytest.raises(HandshakeError, match="does not speak our protocol"):
        Handshake(Role.SERVER, SECRET).receive(frame)


def test_a_refusal_tells_the_peer_why() -> None:
    with pytest.raises(HandshakeError, match="the peer refused us: too old"):
        Handshake(Role.CLIENT, SECRET).receive(refusal(HandshakeError("too old")))


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes"):
        Handshake(Role.CLIENT, b"short")
