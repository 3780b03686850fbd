package org.apache.bookkeeper.client;

import io.netty.buffer.ByteBuf;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieProtocol;

/** A read from one bookie. In this package because the client's connection and digest check are not public. */
public final class OneBookie {
    private OneBookie() {}

    /** The payload of the bookie's copy, if its digest is right. */
    public static CompletableFuture<byte[]> read(
            BookKeeper client, LedgerHandle ledger, BookieId bookie, long entryId) {
        CompletableFuture<byte[]> payload = new CompletableFuture<>();
        client.getBookieClient().readEntry(
                bookie,
                ledger.getId(),
                entryId,
                (code, ledgerId, entry, body, context) -> {
                    if (code != BKException.Code.OK) {
                        payload.completeExceptionally(BKException.create(code));
                        return;
                    }
                    try {
                        ByteBuf checked = ledger.getDigestManager().verifyDigestAndReturnData(entryId, body);
                        byte[] bytes = new byte[checked.readableBytes()];
                        checked.readBytes(bytes);
                        payload.complete(bytes);
                    } catch (BKException wrong) {
                        payload.completeExceptionally(wrong);
                    }
                },
                null,
                BookieProtocol.FLAG_NONE);
        return payload;
    }
}
